"""Hamiltonian systems, trajectories, observables, and what is conserved."""

from symbayes.dynamics.discover import discover
from symbayes.dynamics.discovery import Discovery
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.observables import NeuralObservables, Observables, Quadratics, conserved_quadratics, euclidean, unitary
from symbayes.dynamics.phase import Euler, ImplicitMidpoint, Integrator, Leapfrog, Midpoint, RungeKutta
from symbayes.dynamics.search import Search
from symbayes.dynamics.systems import System, system
from symbayes.dynamics.trajectories import Trajectories, load_trajectories, simulate

__all__ = [
    "Discovery",
    "Euler",
    "HamiltonianNetwork",
    "ImplicitMidpoint",
    "Integrator",
    "Leapfrog",
    "Midpoint",
    "NeuralObservables",
    "Observables",
    "Quadratics",
    "RungeKutta",
    "Search",
    "System",
    "Trajectories",
    "conserved_quadratics",
    "discover",
    "euclidean",
    "load_trajectories",
    "simulate",
    "system",
    "unitary",
]

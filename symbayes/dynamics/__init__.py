"""Trajectories, systems, observables, and what is conserved."""

from symbayes.dynamics.discover import discover, learn_energy
from symbayes.dynamics.discovery import Discovery, TermsDiscovery
from symbayes.dynamics.energy import EnergyDiscovery
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.observables import NeuralObservables, Observables, Quadratics, conserved_quadratics, euclidean, unitary
from symbayes.dynamics.phase import Euler, ImplicitMidpoint, Integrator, Leapfrog, Midpoint, RungeKutta
from symbayes.dynamics.search import Search
from symbayes.dynamics.systems import System, system
from symbayes.dynamics.tables import load_trajectories
from symbayes.dynamics.terms import Terms
from symbayes.dynamics.trajectories import Trajectories, simulate
from symbayes.dynamics.verdict import Verdict

__all__ = [
    "Discovery",
    "EnergyDiscovery",
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
    "Terms",
    "TermsDiscovery",
    "Trajectories",
    "Verdict",
    "conserved_quadratics",
    "discover",
    "euclidean",
    "learn_energy",
    "load_trajectories",
    "simulate",
    "system",
    "unitary",
]

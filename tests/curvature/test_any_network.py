"""Any network: its curvature is that of its Jacobians, or it is refused."""

import os

import pytest
import torch
from torch.testing import assert_close

from symbayes.curvature.diagonal import Diagonal
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kernel import TangentKernel
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from tests.curvature.networks import EMBEDDINGS, IMAGES, SEQUENCES, VECTORS, jacobian, network

CPU = torch.device("cpu")
#: How many networks a test asks.
EACH = 50
#: Of a thousand networks, every fifth, which is asked by all rules; all of them in `make test-all`.
NUMBERS = range(0, 1000, 1000 // int(os.environ.get("RANDOM_NETWORKS", "200")))
TARGETS = torch.tensor([0, 2, 1, 0, 2])
RULES = {
    "diagonal": Diagonal(batch_size=3),
    "full": Ggn(batch_size=3),
    "product": Lanczos(1, 1, batch_size=3),
    "kernel": TangentKernel(5, batch_size=3),
    "ekfac": Ekfac(batch_size=3),
    "kfac": Kfac(batch_size=3),
}


def exact(net):
    """log p(D | W), H, and where each tensor lies in it."""
    outputs, J, names = jacobian(net.model, net.inputs)
    p = outputs.softmax(1)
    L = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    sizes = [net.model.get_parameter(name).numel() for name in names]
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    places = {name: slice(start, stop) for name, start, stop in zip(names, ends[:-1], ends[1:], strict=True)}
    H = torch.einsum("nap,nab,nbq->pq", J, L, J)
    return outputs.log_softmax(1).gather(1, TARGETS[:, None]).sum(), H, places


def check(kind, found, log_likelihood, H, places, words):
    """What a rule says, against H."""
    same = {"rtol": 1e-8, "atol": 1e-10, "msg": lambda text: f"{kind} of {words}: {text}"}
    assert_close(found.log_likelihood.detach(), log_likelihood, **same)
    if kind == "full":
        assert_close(found.H, H, **same)
    elif kind == "product":
        v = torch.randn(len(H), dtype=H.dtype)
        assert_close(found.products.product(v), H @ v, **same)
    elif kind == "kernel":
        precisions = {name: torch.tensor(2.0, dtype=H.dtype) for name in places}
        assert_close(found.log_det(precisions), torch.logdet(torch.eye(len(H), dtype=H.dtype) + H / 2), **same)
    else:
        assert found.blocks.keys() == places.keys()
        for name, place in places.items():
            diagonal = H[place, place].diagonal()
            if kind == "diagonal":
                assert_close(found.blocks[name].diagonal, diagonal, **same)
            elif kind == "ekfac" and not name.endswith("bias"):
                assert_close(found.blocks[name].trace(), diagonal.sum(), **same)


def answers(number):
    """By rule, whether it gave an answer, which is right then; refusals are errors in words of ours."""
    net = network(number)
    data = TensorSource(net.inputs, TARGETS, CPU)
    rules = list(RULES)[: 3 if number % 5 else None]
    found, truth = {}, None
    for kind in rules:
        before = net.inputs.clone()
        try:
            curvature = RULES[kind].curvature(net.model.train(), data, Categorical())
        except (RuntimeError, ValueError) as error:
            words = str(error)
            assert words.startswith(("The model", "In evaluation", "Parameter", "Module", "torch could not")), words
            found[kind] = False
            continue
        finally:
            assert torch.equal(net.inputs, before), f"{net.words}: the data were changed"
        assert net.sound, f"{kind} of {net.words} must be refused"
        truth = truth or exact(net)
        check(kind, curvature, *truth, net.words)
        found[kind] = True
    return net, found


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # where torch has no rule for a batch, it takes one by one
@pytest.mark.parametrize("test", range(len(NUMBERS) // EACH))
def test_curvature_is_that_of_jacobians_or_refused(test):
    refused = []
    for number in NUMBERS[test * EACH : (test + 1) * EACH]:
        net, found = answers(number)
        if net.sound and not all(found.values()):
            refused.append(f"{net.words} ({', '.join(kind for kind, answer in found.items() if not answer)})")
    # What has no answer is weights that are used outside of their modules: most networks have one.
    assert len(refused) < EACH / 4, refused


def test_every_piece_is_in_a_network_that_all_rules_are_asked_about():
    drawn = {kind: set() for kind in ("tokens", "vectors", "images")}
    for number in range(0, 1000, 5):
        drawn["vectors" if number % 2 else "images" if number % 4 else "tokens"].update(network(number).pieces)
    assert drawn == {"tokens": {*EMBEDDINGS, *SEQUENCES}, "vectors": {*VECTORS}, "images": {*IMAGES}}

"""Networks of every parameterisation survive saving, with what was frozen in them."""

import pytest
from torch.testing import assert_close

import symbayes as sb


@pytest.mark.parametrize(
    ("paths", "options"),
    [
        (("conv", "gconv"), {"group": "p4m"}),
        (("gconv_depthwise",), {}),
        (("factored", "sparse_conv"), {"filter_anchors": 0.8, "relaxation": 0.2}),
    ],
)
def test_a_network_is_built_again_from_its_files(paths, options, tmp_path):
    task = sb.load("upright-digits")
    part = (task.train[0][:40], task.train[1][:40])
    model = sb.allconv(task, paths, 1, **options)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    result = sb.fit(model, part, epochs=1, progress=False)
    result.save(tmp_path)
    again = sb.load_result(tmp_path)
    assert_close(again.model(part[0]), result.model(part[0]))
    assert again.symmetries == result.symmetries
    assert [p.requires_grad for p in again.model.parameters()] == [p.requires_grad for p in model.parameters()]

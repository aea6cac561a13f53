"""The samples, references and checks of `kl_div` in PyTorch's wheel. PyTorch's own test files, which use them, are not in the wheel.

plugin.py puts our `kl_div` in the place of `torch.nn.functional.kl_div`, which `nn.KLDivLoss` calls too.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.testing._internal import common_methods_invocations, common_modules, common_nn
from torch.testing._internal.common_utils import gradcheck, gradgradcheck

import kullback.torch

OPERATOR = next(op for op in common_methods_invocations.op_db if op.name == "nn.functional.kl_div")  # OPERATOR.op is PyTorch's own
MODULE = next(module for module in common_modules.module_db if module.module_cls is torch.nn.KLDivLoss)
close = partial(torch.testing.assert_close, equal_nan=True)  # PyTorch's own tolerances for each dtype
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


class Case(common_nn.NNTestCase):
    """How PyTorch's checks of modules call a module."""

    def runTest(self):
        pass

    def _forward(self, module, input):
        return module(*input) if isinstance(input, tuple) else module(input)

    def _forward_criterion(self, criterion, input, target, extra_args):
        return criterion(input, target, *extra_args)

    def _get_parameters(self, module):
        return [], []

    def _zero_grad_parameters(self, module):
        pass

    def _backward(self, module, input, output, grad_output, create_graph=False):
        output.backward(grad_output, retain_graph=True, create_graph=create_graph)
        return input.grad


CASE = Case()
CHECKS = [
    *(common_nn.NewModuleTest(**test) for test in common_nn.get_new_module_tests() if test.get("fullname", "").startswith("KLDivLoss")),
    *(common_nn.CriterionTest(**test) for test in common_nn.criterion_tests if test.get("fullname", "").startswith("KLDivLoss")),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operator(dtype):
    samples = list(OPERATOR.sample_inputs("cpu", dtype))
    assert len(samples) == 16
    for sample in samples:
        found = torch.nn.functional.kl_div(sample.input, *sample.args, **sample.kwargs)
        close(found, OPERATOR.op(sample.input, *sample.args, **sample.kwargs))


@pytest.mark.parametrize("i", range(16))
def test_derivatives_of_operator(i):
    sample = list(OPERATOR.sample_inputs("cpu", torch.float64, requires_grad=True))[i]
    arrays = (sample.input, *sample.args)

    def function(input, target):
        return torch.nn.functional.kl_div(input, target, **sample.kwargs)

    assert OPERATOR.supports_forward_ad
    assert OPERATOR.supports_fwgrad_bwgrad
    gradcheck(function, arrays, check_batched_grad=OPERATOR.check_batched_grad, check_forward_ad=True, check_batched_forward_grad=True)
    gradgradcheck(function, arrays, check_batched_grad=OPERATOR.check_batched_gradgrad, check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("loss", [torch.nn.KLDivLoss, kullback.torch.KLDivLoss], ids=["torch", "kullback"])
def test_module(loss, dtype):
    inputs = MODULE.module_inputs_func(MODULE, device="cpu", dtype=dtype, requires_grad=False, training=False)
    assert len(inputs) == 10
    for sample in inputs:
        module = loss(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        arguments = sample.forward_input.args
        close(module(*arguments), sample.reference_fn(module, *arguments))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.get_name())
def test_module_as_in_test_nn(check):
    check(CASE)

"""Numbers of mean 0 and standard deviation 1, which networks and priors are made for; and back."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Standard:
    """How numbers were standardised: by feature, or all channels of a grid by themselves."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, values: Tensor, *, by_feature: bool) -> "Standard":
        """That of values [n, d], by feature; or of values [n, channels, *grid], by channel.

        A feature that is constant stays what it is but for its mean.
        """
        over = [0] if by_feature else [0, *range(2, values.ndim)]
        mean, std = values.double().mean(over, keepdim=True), values.double().std(over, correction=0, keepdim=True)
        # Rounding leaves a little of what is constant.
        constant = std <= (1e-12 if values.dtype == torch.float64 else 1e-6) * mean.abs()
        return cls(mean[0].to(values.dtype), torch.where(constant, 1.0, std)[0].to(values.dtype))

    def __call__(self, values: Tensor) -> Tensor:
        """Values as a network takes them."""
        return (values - self.mean) / self.std

    def back(self, values: Tensor) -> Tensor:
        """What values are of that a network gives."""
        return values * self.std + self.mean

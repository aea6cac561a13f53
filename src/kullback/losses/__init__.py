"""Training losses: KL penalties of policies, and the published recipes by name."""

from .fisher import fisher_vector_product
from .policy import policy_kl
from .recipes import AdaptiveKLController, FixedKLController, deepseek_v32, grpo, kimi_k15, ppo_rewards

__all__ = [
    "AdaptiveKLController",
    "FixedKLController",
    "deepseek_v32",
    "fisher_vector_product",
    "grpo",
    "kimi_k15",
    "policy_kl",
    "ppo_rewards",
]

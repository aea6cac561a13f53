"""Training losses: a student against a teacher, a policy against its reference, and the published recipes by name."""

from .distillation import kl_loss
from .fisher import fisher_vector_product
from .linear import linear_kl
from .policy import policy_kl
from .recipes import AdaptiveKLController, FixedKLController, deepseek_v32, grpo, kimi_k15, ppo_rewards
from .sparse import TopK
from .tokens import TokenTerms, token_terms

__all__ = [
    "AdaptiveKLController",
    "FixedKLController",
    "TokenTerms",
    "TopK",
    "deepseek_v32",
    "fisher_vector_product",
    "grpo",
    "kimi_k15",
    "kl_loss",
    "linear_kl",
    "policy_kl",
    "ppo_rewards",
    "token_terms",
]

"""torch.optim: optimisers, which change parameters in place by their gradients.

An update is recorded like any other computation and runs, fused, when a value is next needed. Learning
rates are arguments of the compiled programs, so a schedule compiles nothing anew. Start reading at
`symgrad.optim.optimizer`.
"""

from symgrad.optim import lr_scheduler
from symgrad.optim.adagrad import Adagrad
from symgrad.optim.adam import Adam, AdamW
from symgrad.optim.lbfgs import LBFGS
from symgrad.optim.optimizer import Optimizer
from symgrad.optim.rmsprop import RMSprop
from symgrad.optim.sgd import SGD

__all__ = ["Adagrad", "Adam", "AdamW", "LBFGS", "Optimizer", "RMSprop", "SGD", "lr_scheduler"]

"""symgrad, eager autograd, for the yardstick that times libraries side by side.

The yardstick finds this file through BENCH_IMPLS; `maths` and `workloads` are its modules. Each
workload is written here once, as a *program*: a builder that takes the inputs and gives a
function of tensors, its arguments as arrays, and how many leading arguments are differentiated.
`symgrad_compiled.py` compiles the same programs. Start reading at `eager`, then `greeks`.
"""

from __future__ import annotations

import maths
import numpy as np
from workloads import GMM_ARGS, tril_index

import symgrad as sg

VENV = "symgrad"
REQUIRES = ["-e", "."]
IMPORT = "import symgrad"

grad = sg.autograd.grad


class Names:
    """symgrad under the names that `maths` uses."""

    exp, log, log1p, sqrt, sin, cos = sg.exp, sg.log, sg.log1p, sg.sqrt, sg.sin, sg.cos
    tanh, erf, relu, sigmoid, gelu = sg.tanh, sg.erf, sg.relu, sg.sigmoid, sg.gelu
    sum, mean, stack, einsum, logsumexp = sg.sum, sg.mean, sg.stack, sg.einsum, sg.logsumexp
    diagonal, transpose, diag_fill = sg.diagonal, sg.permute, sg.diag_embed

    @staticmethod
    def tril_fill(rows, d):
        r, c = tril_index(d)
        q = sg.zeros(rows.shape[0], d, d, dtype=rows.dtype)
        q[:, r, c] = rows
        return q

    @staticmethod
    def layer_norm(x, g, c):
        return sg.nn.functional.layer_norm(x, (x.shape[-1],), g, c)

    @staticmethod
    def attention(q, k, v):
        s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return sg.softmax(s, -1) @ v

    @staticmethod
    def solve(a, b):
        return sg.linalg.solve(a, b)

    @staticmethod
    def cholesky(a):
        return sg.linalg.cholesky(a)

    @staticmethod
    def cho_solve(L, y):
        return sg.cholesky_solve(y[:, None], L)[:, 0]


def to_numpy(a):
    return a.detach().numpy() if isinstance(a, sg.Tensor) else a


def settle(outputs):
    """Values are computed when somebody looks; eager peers have computed theirs at this point."""
    for a in outputs:
        if isinstance(a, sg.Tensor):
            a.look()
    return outputs


def tensors(args, count):
    """Arguments as tensors; the first `count` record derivatives."""
    return [
        sg.tensor(a, requires_grad=k < count) if isinstance(a, np.ndarray | np.floating) else a
        for k, a in enumerate(args)
    ]


def eager(program):
    """The step of a program run eagerly."""

    def build(inp):
        function, args, count = program(inp)
        made = tensors(args, count)
        return lambda: function(*made)

    return build


# -- programs ---------------------------------------------------------------------------


def with_gradient(value):
    """The outputs of most workloads: a value, then its derivatives by the leading arguments."""

    def make(count):
        def outputs(*args):
            made = value(*args)
            return made, *grad(made, args[:count])

        return outputs

    return make


def greeks(inp):
    def outputs(S, t, r, v, K):
        price = maths.black_scholes(Names, S, K, t, r, v)
        first = grad(price.sum(), (S, t, r, v), create_graph=True)
        return price, *first, grad(first[0].sum(), S)[0]

    return outputs, [inp[k] for k in "STrvK"], 4


def chain(inp):
    return with_gradient(lambda x: maths.chain(Names, x).sum())(1), [inp["x"]], 1


def logistic(inp):
    def loss(w, X, y):
        return maths.logistic_loss(Names, w, X, y, inp["lam"])

    return with_gradient(loss)(1), [inp[k] for k in "wXy"], 1


def logistic_hvp(inp):
    def outputs(w, X, y, v):
        (g,) = grad(maths.logistic_loss(Names, w, X, y, inp["lam"]), w, create_graph=True)
        along = g @ v
        return along, grad(along, w)[0]

    return outputs, [inp[k] for k in "wXyv"], 1


def mlp(inp):
    def outputs(W1, b1, W2, b2, x, label):
        params = (W1, b1, W2, b2)
        hidden = sg.relu(sg.addmm(b1, x, W1))
        loss = sg.nn.functional.cross_entropy(hidden @ W2 + b2, label)
        return loss, *[p - inp["lr"] * g for p, g in zip(params, grad(loss, params), strict=True)]

    return outputs, [*inp["params"], inp["x"], inp["label"]], 4


def pinn(inp):
    def outputs(*args):
        *params, x, t = args
        u = maths.pinn_u(Names, params, x, t)
        ux, ut = grad(u.sum(), (x, t), create_graph=True)
        (uxx,) = grad(ux.sum(), x, create_graph=True)
        loss = ((ut + u * ux - inp["nu"] * uxx) ** 2).mean()
        return loss, *grad(loss, params)

    args = [*inp["params"], inp["x"], inp["t"]]
    return outputs, args, len(args)


def rosenbrock(inp):
    return with_gradient(lambda x: maths.rosenbrock(Names, x))(1), [inp["x"]], 1


def rosenbrock_hessian(inp):
    hessian = sg.func.hessian(lambda x: maths.rosenbrock(Names, x))
    return lambda x: (hessian(x),), [inp["x"]], 0


def lennard_jones(inp):
    def outputs(X, eye):
        energy = maths.lennard_jones(Names, X, eye)
        return energy, -grad(energy, X)[0]

    return outputs, [inp["X"], inp["eye"]], 1


def lennard_jones_hvp(inp):
    def outputs(X, V, eye):
        (g,) = grad(maths.lennard_jones(Names, X, eye), X, create_graph=True)
        return grad(g, X, V)

    return outputs, [inp[k] for k in ("X", "V", "eye")], 1


def arm(inp):
    constants = [sg.tensor(inp[k]) for k in ("A", "B", "lower", "shift")]

    def dynamics(s):
        a = maths.arm_array(Names, s, *constants)
        return a, a

    jacobian = sg.func.jacrev(dynamics, has_aux=True)
    return lambda s: jacobian(s)[::-1], [inp["s"]], 0


def arm_in_scalars(inp):
    """The same Jacobian from scalar code: for compiling, since eagerly each scalar is an op."""
    A, B = inp["A"].tolist(), inp["B"].tolist()

    def dynamics(s):
        q = s.unbind()
        a = sg.stack(maths.arm_scalar(Names, q[:7], q[7:14], q[14:], A, B))
        return a, a

    jacobian = sg.func.jacrev(dynamics, has_aux=True)
    return lambda s: jacobian(s)[::-1], [inp["s"]], 0


def mixture(inp):
    rest = [inp[k] for k in GMM_ARGS[4:]]

    def value(alphas, means, icf, x):
        return maths.gmm(Names, alphas, means, icf, x, *rest)

    return with_gradient(value)(3), [inp[k] for k in GMM_ARGS[:4]], 3


def adjustment(inp):
    def outputs(cams, X, w, feats, cameras, points):
        rows = sg.cat([cams[cameras], X[points], w[:, None]], 1)
        rows = rows.detach().requires_grad_()
        col = rows.unbind(1)
        errors = maths.ba_residual(Names, col[:11], col[11:14], col[14], feats.unbind(1))
        blocks = [grad(e.sum(), rows, retain_graph=True)[0] for e in errors]
        return sg.stack(errors, 1), sg.stack(blocks, 1), -2.0 * w

    cameras, points = (np.ascontiguousarray(inp["obs"][:, k]) for k in (0, 1))
    return outputs, [*[inp[k] for k in ("cams", "X", "w", "feats")], cameras, points], 0


def lstm(inp):
    def loss(main, extra, hidden, cell, seq):
        def step(carry, row):
            hs, cs, total = carry
            x, gold = row
            hs, cs, pred = maths.lstm_step(Names, main, extra, hs, cs, x)
            return (hs, cs, total + maths.lstm_term(Names, pred, gold)), None

        start = list(hidden), list(cell), 0.0
        (_, _, total), _ = sg.scan(step, start, (seq[:-1], seq[1:]))
        return -total / ((seq.shape[0] - 1) * seq.shape[1])

    return with_gradient(loss)(2), [inp[k] for k in ("main", "extra", "hidden", "cell", "seq")], 2


def hand(inp):
    model = {k: sg.tensor(v) if hasattr(v, "shape") else v for k, v in inp["model"].items()}

    def errors(theta):
        e = maths.hand(Names, theta, model)
        return e, e

    jacobian = sg.func.jacfwd(errors, has_aux=True)
    return lambda theta: jacobian(theta)[::-1], [inp["theta"]], 0


def transformer(inp):
    names = list(inp["params"])

    def loss(x, *args):
        *params, target = args
        named = dict(zip(names, params, strict=True))
        return maths.transformer_loss(Names, named, x, target, inp["heads"])

    count = len(names) + 1
    return with_gradient(loss)(count), [inp["x"], *inp["params"].values(), inp["target"]], count


def process(inp):
    def value(logp, D2, y, eye):
        return maths.gp_lml(Names, logp, D2, y, eye)

    return with_gradient(value)(1), [inp[k] for k in ("logp", "D2", "y", "eye")], 1


def orders(inp):
    def outputs(x):
        return sg.func.derivatives(lambda x: maths.univariate(Names, x), x, 8)

    return outputs, [inp["x"]], 0


def runge_kutta(inp):
    def loss(z):
        x, y, *rates = z.unbind()

        def step(state, _):
            return maths.rk4_step(state, rates, inp["h"]), None

        end, _ = sg.scan(step, [x, y], length=inp["steps"])
        return maths.final_loss(end)

    return with_gradient(loss)(1), [inp["z"]], 1


def tiny(inp):
    def value(x, y):
        z = maths.tiny(Names, x, y)
        return z.sum() if z.ndim else z

    return with_gradient(value)(2), [inp["x"], inp["y"]], 2


W1 = eager(greeks)
W2 = eager(chain)
W3_grad = eager(logistic)
W3_hvp = eager(logistic_hvp)
W4 = eager(mlp)
W5 = eager(pinn)
W6_grad = eager(rosenbrock)
W6_hess = eager(rosenbrock_hessian)
W7_force = eager(lennard_jones)
W7_hvp = eager(lennard_jones_hvp)
W8 = eager(arm)
W9_small = W9_large = eager(mixture)
W10 = eager(adjustment)
W11 = eager(lstm)
W12 = eager(hand)
W13 = eager(transformer)
W14 = eager(process)
W15 = eager(orders)
W16 = eager(runge_kutta)
W17_eager_scalar = W17_eager_vec10 = eager(tiny)

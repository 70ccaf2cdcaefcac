"""Taylor mode: from the Taylor coefficients of inputs along a curve to those of outputs.

Where nested forward mode repeats work at every order, all orders are carried along together, at
the cost of O(n^2) products per op and order n (Griewank and Walther, "Evaluating Derivatives",
2nd ed., SIAM 2008, chapter 13; Bettencourt, Johnson, Duvenaud, "Taylor-Mode Automatic
Differentiation for Higher-Order Derivatives in JAX", 2019). Coefficients are normalised: those of
x(t) = x + x_1 t + x_2 t^2 + ... are x_k. On request derivatives, k! x_k, are carried in their place,
which makes the formulas of textbooks (Leibniz' rule) at the cost of a binomial coefficient per term.

No op has a Taylor rule of its own; what it declares for first derivatives is enough:

* partials and selections: out' = sum_i p_i x_i', so k out_k = sum_i sum_j j x_ij p_i(k-j). The
  factors p_i are expressions of the result and the arguments, so that their coefficients follow
  in the same way, an order lower: that of exp is the result itself, that of sin is cos, whose own
  factor is -sin. Nodes are interned, so such a circle closes and the two advance together.
* partials that are each the other argument: a product, by Cauchy's formula.
* a `ratio`: long division.
* linear maps: the op on each coefficient; maps linear in each argument: Cauchy's formula.
* `vjp`: the tangent is an expression of arguments and tangents, and its coefficients give the
  result's, an order higher.

Structures: `Curve` holds the coefficients that are known and finds others, with an explicit
stack; a `_Rule` says, for one node, which others a coefficient needs, and what it is. A
coefficient is an expression, a Python number, or None for a structural zero. Start reading at
`taylor_series`, then `Curve.coefficient`, then `_Chain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from symgrad.calculus.cotangent import summed
from symgrad.calculus.forward import applied, spread, transposed
from symgrad.calculus.reverse import scale, through
from symgrad.expr import Expr, ancestors
from symgrad.op import CONSTANT, grad_mode, input_node, interning, record
from symgrad.ops.arithmetic import add, keep, neg
from symgrad.ops.movement import full

Number = float | complex
Coefficient = Expr | Number | None
Need = tuple[Expr, int]

STILL, MOVES, CARRIES = range(3)
"""Whether a node stays put along the curve, moves, or holds tangents of its own (`_Tangent`)."""


# -- arithmetic of coefficients -------------------------------------------------------------


def _product(a: Coefficient, b: Coefficient) -> Coefficient:
    """a * b, with selections of either kept outermost."""
    if a is None or b is None:
        return None
    if not isinstance(a, Expr):
        a, b = b, a
    if not isinstance(a, Expr):
        return a * b  # type: ignore[operator]
    if not isinstance(b, Expr):
        return scale(a, b)  # type: ignore[arg-type]
    if b.op is keep and a.op is not keep:
        a, b = b, a
    if b.op is keep:
        condition, inner = b.args
        return keep(condition, scale(a, inner))
    return scale(a, b)


def _sum(a: Coefficient, b: Coefficient) -> Coefficient:
    """a + b."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Expr) and isinstance(b, Expr):
        return summed(a, b)
    if isinstance(a, Expr) or isinstance(b, Expr):
        return add(a, b)
    return a + b


def _difference(a: Coefficient, b: Coefficient) -> Coefficient:
    """a - b."""
    if b is None:
        return a
    if a is None:
        return through(neg, b) if isinstance(b, Expr) else -b
    return a - b


def _is_zero(factor: Expr | Number) -> bool:
    return not isinstance(factor, Expr) and factor == 0.0


def _tensor(c: Coefficient, like: Expr) -> Expr:
    """A coefficient of a node as an expression in its shape."""
    if isinstance(c, Expr):
        return spread(c, like.shape)
    return full(0.0 if c is None else c, like.shape, like.dtype)  # type: ignore[arg-type]


# -- the curve --------------------------------------------------------------------------


class Curve:
    """Nodes along a curve: what is known of their Taylor coefficients, and how to find more.

    Parameters
    ----------
    inputs : sequence of Expr
    series : sequence of sequences of Coefficient
        Per input its coefficients of order 1 and up; what lies beyond is zero.
    normalised : bool
        Whether coefficients are derivatives over factorials, or derivatives.
    """

    def __init__(
        self,
        inputs: Sequence[Expr],
        series: Sequence[Sequence[Coefficient]],
        normalised: bool = True,
    ) -> None:
        self._normalised = normalised
        self._known: dict[tuple[int, int], Coefficient] = {}
        self._rules: dict[int, _Rule] = {}
        # Nodes are looked up by id, so they are held for as long as the curve lives.
        self._motion: dict[int, tuple[int, Expr]] = {}
        for x, terms in zip(inputs, series, strict=True):
            self.put(x, _Given(self, x, terms), MOVES)

    def put(self, node: Expr, rule: _Rule, motion: int) -> None:
        """State how a node moves."""
        self._rules[id(node)] = rule
        self._motion[id(node)] = motion, node

    def motion(self, node: Expr) -> int:
        """Whether a node stays, moves, or carries tangents."""
        found = self._motion.get(id(node))
        if found is not None:
            return found[0]
        for n in ancestors([node], lambda n: id(n) not in self._motion and n.op.family != "leaf"):
            if id(n) not in self._motion:
                self._motion[id(n)] = self._moved(n), n
        return self._motion[id(node)][0]

    def _moved(self, node: Expr) -> int:
        """What the arguments' motion makes of the node."""
        if node.op.family == "leaf":
            return STILL
        motion = max((self._motion[id(a)][0] for a in node.args), default=STILL)
        if motion != CARRIES and (not node.op.differentiable or node.dtype.category < 2):
            return STILL
        return motion

    def at(self, node: Expr, order: int) -> Coefficient:
        """A coefficient that was found before."""
        return self._known[id(node), order]

    def tensor(self, node: Expr, order: int) -> Expr:
        """A coefficient that was found before, as an expression in the node's shape."""
        return _tensor(self.at(node, order), node)

    def term(self, node: Expr, order: int) -> Expr | None:
        """The coefficient of a node at an order, as an expression in the node's shape, None for 0."""
        c = self.coefficient(node, order)
        return None if c is None else _tensor(c, node)

    def coefficient(self, node: Expr, order: int) -> Coefficient:
        """The coefficient of a node at an order."""
        stack = [(node, order)]
        while stack:
            n, k = stack[-1]
            if (id(n), k) in self._known:
                stack.pop()
                continue
            rule = self._rule(n)
            missing = [(a, j) for a, j in rule.needs(k) if (id(a), j) not in self._known]
            if missing:
                stack.extend(reversed(missing))
            else:
                self._known[id(n), k] = rule.coefficient(k)
                stack.pop()
        return self._known[id(node), order]

    def rate(self, order: int) -> float:
        """What the coefficient of an order is multiplied by in that of the derivative."""
        return float(order) if self._normalised else 1.0

    def share(self, order: int, j: int) -> float:
        """What the product of coefficients of orders j and order - j is multiplied by in that of
        the product."""
        return 1.0 if self._normalised else float(comb(order, j))

    def _rule(self, node: Expr) -> _Rule:
        rule = self._rules.get(id(node))
        if rule is None:
            motion = self.motion(node)
            moving = STILL if not node.op.differentiable or node.dtype.category < 2 else motion
            rule = _rule_for(self, node) if moving else _Still(self, node)
            if motion == CARRIES:
                rule = _Renewed(self, node, rule)
            self._rules[id(node)] = rule
        return rule


def taylor_series(
    outputs: Sequence[Expr],
    inputs: Sequence[Expr],
    series: Sequence[Sequence[Coefficient]],
    order: int,
    normalised: bool = True,
) -> list[list[Expr | None]]:
    """Taylor coefficients of `outputs` when `inputs` move along a curve.

    Parameters
    ----------
    outputs, inputs : sequences of Expr
    series : sequence of sequences
        Per input its coefficients of order 1 and up: expressions of its shape and dtype, numbers
        (the same for all elements), or None for zero.
    order : int
        The last order.
    normalised : bool
        Whether coefficients are derivatives over factorials, or derivatives.

    Returns
    -------
    list of list of Expr or None
        Per output its coefficients of orders 1 to `order`, None for a structural zero.

    Raises
    ------
    NotImplementedError
        If a function whose derivative is code lies on the way.
    """
    with interning(ancestors(outputs, lambda n: n.op.family != "leaf")), grad_mode(True):
        curve = Curve(inputs, series, normalised)
        found: list[list[Expr | None]] = []
        for y in outputs:
            found.append([curve.term(y, k) for k in range(1, order + 1)])
    return found


# -- rules ------------------------------------------------------------------------------


class _Rule:
    """How the coefficients of a node follow from others."""

    def __init__(self, curve: Curve, node: Expr) -> None:
        self.curve = curve
        self.node = node

    def needs(self, order: int) -> Iterable[Need]:
        """What must be known before `coefficient` is asked."""
        return ()

    def coefficient(self, order: int) -> Coefficient:
        """The node's coefficient at an order; at order 0 the node itself, or its number."""
        raise NotImplementedError


class _Still(_Rule):
    """A node that does not depend on the inputs."""

    def coefficient(self, order: int) -> Coefficient:
        node = self.node
        if order:
            return None
        return node.value if node.op is CONSTANT and node.dtype.category >= 2 else node


class _Given(_Rule):
    """An input."""

    def __init__(self, curve: Curve, node: Expr, terms: Sequence[Coefficient]) -> None:
        super().__init__(curve, node)
        self.terms = terms

    def coefficient(self, order: int) -> Coefficient:
        if order == 0:
            return self.node
        return self.terms[order - 1] if order <= len(self.terms) else None


class _Rate(_Rule):
    """A placeholder for the derivative of a node along the curve."""

    def needs(self, order: int) -> Iterable[Need]:
        return ((self.node, order + 1),)

    def coefficient(self, order: int) -> Coefficient:
        return _product(self.curve.at(self.node, order + 1), self.curve.rate(order + 1))


class _Renewed(_Rule):
    """A node over placeholders: its value is that of the op on their values."""

    def __init__(self, curve: Curve, node: Expr, rule: _Rule) -> None:
        super().__init__(curve, node)
        self.rule = rule

    def needs(self, order: int) -> Iterable[Need]:
        return self.rule.needs(order) if order else [(a, 0) for a in self.node.args]

    def coefficient(self, order: int) -> Coefficient:
        if order:
            return self.rule.coefficient(order)
        node = self.node
        args = tuple(
            a if self.curve.motion(a) != CARRIES else self.curve.tensor(a, 0) for a in node.args
        )
        return record(node.op, args, node.attrs, node.shape, node.dtype)


class _Moving(_Rule):
    """A node that moves; `moved` gives its coefficients of order 1 and up."""

    def needs(self, order: int) -> Iterable[Need]:
        return self.needed(order) if order else ()

    def coefficient(self, order: int) -> Coefficient:
        return self.moved(order) if order else self.node

    def needed(self, order: int) -> Iterable[Need]:
        """What `moved` reads."""
        raise NotImplementedError

    def moved(self, order: int) -> Coefficient:
        """The coefficient at an order of at least 1."""
        raise NotImplementedError

    def spread(self, c: Coefficient) -> Coefficient:
        """A coefficient in the node's shape, unless it is a number."""
        return spread(c, self.node.shape) if isinstance(c, Expr) else c


class _Product(_Moving):
    """A product x * y."""

    def needed(self, order: int) -> Iterable[Need]:
        return [(a, k) for k in range(order + 1) for a in self.node.args]

    def moved(self, order: int) -> Coefficient:
        x, y = self.node.args
        total: Coefficient = None
        if x is y:
            for j in range((order + 1) // 2):
                total = _sum(total, self._term(order, j))
            total = _product(total, 2.0)
            if order % 2 == 0:
                total = _sum(total, self._term(order, order // 2))
        else:
            for j in range(order + 1):
                total = _sum(total, self._term(order, j))
        return self.spread(total)

    def _term(self, order: int, j: int) -> Coefficient:
        x, y = self.node.args
        curve = self.curve
        product = _product(curve.at(x, j), curve.at(y, order - j))
        return _product(product, curve.share(order, j))


class _Quotient(_Moving):
    """A ratio x / y: y out = x."""

    def __init__(self, curve: Curve, node: Expr) -> None:
        super().__init__(curve, node)
        assert node.op.ratio is not None
        self.above, self.below = node.op.ratio(node, *node.args, **node.attributes())
        self.inverse: Expr = 1.0 / self.below

    def needed(self, order: int) -> Iterable[Need]:
        orders = range(1, order + 1)
        wanted = [(n, k) for k in orders for n in (self.above, self.below)]
        return [(self.inverse, 0), *wanted, *((self.node, k) for k in range(order))]

    def moved(self, order: int) -> Coefficient:
        at = self.curve.at
        total: Coefficient = None
        for j in range(1, order + 1):
            product = _product(at(self.below, j), at(self.node, order - j))
            total = _sum(total, _product(product, self.curve.share(order, j)))
        rest = _difference(at(self.above, order), total)
        return self.spread(_product(rest, at(self.inverse, 0)))


class _Chain(_Moving):
    """Partials and selections: out' = sum_i p_i x_i', each term kept where its mask holds."""

    def __init__(
        self, curve: Curve, node: Expr, factors: Sequence[tuple[Expr | None, Expr | Number] | None]
    ) -> None:
        super().__init__(curve, node)
        self.terms = [
            (a, *factor)
            for a, factor in zip(node.args, factors, strict=True)
            if factor is not None and not _is_zero(factor[1]) and curve.motion(a) != STILL
        ]

    def needed(self, order: int) -> Iterable[Need]:
        wanted: list[Need] = []
        for a, mask, factor in self.terms:
            if mask is not None:
                wanted.append((mask, 0))
            wanted += [(a, j) for j in range(1, order + 1)]
            if isinstance(factor, Expr):
                wanted += [(factor, j) for j in range(order)]
        return wanted

    def moved(self, order: int) -> Coefficient:
        total: Coefficient = None
        for a, mask, factor in self.terms:
            if isinstance(factor, Expr):
                part = self._convolved(a, factor, order)
            else:
                part = _product(self.curve.at(a, order), factor)
            if mask is not None and part is not None:
                part = keep(
                    self.curve.at(mask, 0), _tensor(part, a) if not isinstance(part, Expr) else part
                )
            total = _sum(total, part)
        return self.spread(total)

    def _convolved(self, x: Expr, p: Expr, order: int) -> Coefficient:
        """sum_j j/k x_j p_(k-j). Numbers take the fraction in; of what is left, it is taken once."""
        curve = self.curve
        at = curve.at
        rate = curve.rate(order)
        whole: Coefficient = None
        parts: Coefficient = None
        for j in range(1, order + 1):
            moved = at(x, j)
            weight = curve.rate(j) * curve.share(order - 1, j - 1)
            if j == order or not isinstance(moved, Expr):
                whole = _sum(whole, _product(_product(moved, weight / rate), at(p, order - j)))
            else:
                parts = _sum(parts, _product(_product(moved, weight), at(p, order - j)))
        return _sum(_product(parts, 1.0 / rate), whole)


class _Linear(_Moving):
    """A map linear in all arguments together: the op on their coefficients."""

    def needed(self, order: int) -> Iterable[Need]:
        return [(a, order) for a in self.node.args]

    def moved(self, order: int) -> Coefficient:
        terms = [
            None if self.curve.at(a, order) is None else self.curve.tensor(a, order)
            for a in self.node.args
        ]
        return None if all(t is None for t in terms) else applied(self.node, terms)


class _Bilinear(_Moving):
    """A map linear in each of two arguments."""

    def needed(self, order: int) -> Iterable[Need]:
        return [(a, k) for k in range(order + 1) for a in self.node.args]

    def moved(self, order: int) -> Coefficient:
        a, b = self.node.args
        at, tensor = self.curve.at, self.curve.tensor
        total: Coefficient = None
        for j in range(order + 1):
            if at(a, j) is not None and at(b, order - j) is not None:
                part = self.node.op(tensor(a, j), tensor(b, order - j), **self.node.attributes())
                total = _sum(total, _product(part, self.curve.share(order, j)))
        return total


class _Tangent(_Moving):
    """A `vjp` rule: out' is the transposed pullback of the arguments' own derivatives."""

    def __init__(self, curve: Curve, node: Expr) -> None:
        super().__init__(curve, node)
        rates: list[Expr | None] = []
        for a in node.args:
            moves = curve.motion(a) != STILL and a.dtype.category >= 2
            rate = input_node(a.shape, a.dtype, grad=True) if moves else None
            if rate is not None:
                curve.put(rate, _Rate(curve, a), CARRIES)
            rates.append(rate)
        self.tangent = transposed(node, rates)
        self.rates = rates

    def needed(self, order: int) -> Iterable[Need]:
        return () if self.tangent is None else ((self.tangent, order - 1),)

    def moved(self, order: int) -> Coefficient:
        if self.tangent is None:
            return None
        return _product(self.curve.at(self.tangent, order - 1), 1.0 / self.curve.rate(order))


def _rule_for(curve: Curve, node: Expr) -> _Rule:
    """The rule of a node that moves, from the kind of its derivative rule."""
    op = node.op
    attrs = node.attributes()
    if op.ratio is not None:
        return _Quotient(curve, node)
    if op.rule == "partials":
        factors = op.partials(node, *node.args, **attrs)
        if len(factors) == 2 and factors[0] is node.args[1] and factors[1] is node.args[0]:
            return _Product(curve, node)
        return _Chain(curve, node, [None if p is None else (None, p) for p in factors])
    if op.rule == "select":
        return _Chain(curve, node, op.select(node, *node.args, **attrs))
    if op.rule == "vjp":
        return _Tangent(curve, node)
    if op.rule == "adjoint" and op.linear == "each":
        return _Bilinear(curve, node)
    if op.rule == "adjoint" and op.family != "function":
        return _Linear(curve, node)
    raise NotImplementedError(
        "jet: functions whose derivative is code (autograd.Function, checkpoint) have no Taylor "
        f"coefficients (got {op.name} on the way); write them with operations, or nest func.jvp"
    )

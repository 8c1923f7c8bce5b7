"""From a parsed module to a spec: functions, values, and which op becomes what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from polyq.affine.errors import SpecError
from polyq.affine.expr import Affine
from polyq.affine.extents import Shape
from polyq.affine.mlir.draft import Draft, Written, located
from polyq.affine.mlir.scalars import CASTS, SCALAR_OPS
from polyq.affine.mlir.source import Module
from polyq.affine.mlir.syntax import DYNAMIC, attribute, integers, texts
from polyq.affine.mlir.tiles import merge_tiles
from polyq.affine.mlir.types import dtype_of, is_signless, is_tensor, noted_dtype, sizes_of
from polyq.affine.mlir.values import Uniform, Value, View
from polyq.affine.notation import parse_extent
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, Scalar, apply
from polyq.affine.spec import Spec

__all__ = ["ModuleReader", "read_module"]

_SCALAR = (Const, Index, Load, Cast, Apply)


def read_module(module: Module, function: str | None = None) -> Spec:
    """Return the spec of a function of the module (its only one, unless ``function`` names it)."""
    func = _function(module, function)
    reader = ModuleReader(module, func)
    return reader.read()


def _function(module: Module, wanted: str | None) -> FuncOp:
    found: list[FuncOp] = []

    def collect(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, ModuleOp):
                collect(op.body.block)
            elif isinstance(op, FuncOp):
                if op.body.blocks:
                    found.append(op)
            else:
                raise SpecError(f"{module.place(op)}: expected a func.func, got {op.name}")

    collect(module.op.body.block)
    names = [f.sym_name.data for f in found]
    chosen = [f for f in found if wanted is None or f.sym_name.data == wanted]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        asked = "a func.func with a body" if wanted is None else f"a function @{wanted}"
        place = module.place(found[0] if found else module.op)
        raise SpecError(f"{place}: expected {asked}, got {', '.join(f'@{n}' for n in names) or 'none'}")
    several = ", ".join(f"@{n}" for n in names)
    raise SpecError(f"{module.place(chosen[1])}: {len(names)} functions, {several}; name one by function=...")


class ModuleReader:
    """Reads one function, op by op; what each op means for tensors is in :mod:`.tensors` and :mod:`.structured`."""

    def __init__(self, module: Module, func: FuncOp) -> None:
        from polyq.affine.mlir.constants import read_constant
        from polyq.affine.mlir.structured import STRUCTURED
        from polyq.affine.mlir.tensors import TENSORS

        self.module = module
        self.func = func
        self.draft = Draft(module.file, as_written="polyq.as_written" in func.attributes)
        self.values: dict[SSAValue, Value | Scalar] = {}
        self.handlers: dict[str, Callable[[ModuleReader, Operation], None]] = {
            **TENSORS, **STRUCTURED, "arith.constant": read_constant, "flow.dispatch.region": _region,
        }  # fmt: skip
        self.seen: set[Operation] = set()
        self.pinned: set[str] = set()
        self.updated: set[str] = set()
        self.tiled = False

    # ---- the function
    def read(self) -> Spec:
        """Return the function's spec."""
        block = self.func.body.blocks[0]
        if len(self.func.body.blocks) != 1:
            raise SpecError(
                f"{self.place(self.func)}: expected one block in a function, got {len(self.func.body.blocks)}"
            )
        with located(self.place(self.func)):
            for argument in block.args:
                self._argument(argument)
        returned = self.run(block, "func.return")
        op = cast("Operation", block.last_op)
        expected = tuple(self.func.function_type.outputs.data)
        if tuple(v.type for v in returned) != expected:
            got = ", ".join(str(v.type) for v in returned) or "nothing"
            raise SpecError(
                f"{self.place(op)}: return: expected {', '.join(map(str, expected)) or 'nothing'}, "
                f"as @{self.func.sym_name.data} says, got {got}"
            )
        if not returned:
            raise SpecError(f"{self.place(op)}: the function returns nothing; expected a result")
        with located(self.place(op)):
            outputs = self._outputs(returned, self.place(op))
            order = texts(self.func.attributes.get("polyq.tensors"))
            spec = self.draft.finish(self.func.sym_name.data, outputs, order)
        return merge_tiles(spec) if self.tiled else spec

    def _argument(self, argument: SSAValue) -> None:
        kind, name = argument.type, self.name(argument)
        if not is_tensor(kind) and str(kind) == "index":
            self.values[argument] = Index(self.draft.parameter(name))
            return
        notes = self._notes(argument)
        signed = texts(notes.get("polyq.dtype"))
        dtype = noted_dtype(kind, notes.get("polyq.dtype"))
        shape: list[Affine] = []
        entries = texts(notes.get("polyq.shape"))
        for k, n in enumerate(sizes_of(kind) if is_tensor(kind) else ()):
            if entries:
                shape.append(parse_extent(entries[k]))
                self.draft.reserve(shape[-1].params())
            else:
                shape.append(self.draft.parameter(f"{name}_d{k}") if n is None else Affine(n))
        view = self.draft.input(name, dtype, tuple(shape), signless=is_signless(kind) and not signed)
        if "polyq.updated" in notes:
            self.updated.add(view.tensor)
        self.values[argument] = view if is_tensor(kind) else view.at(())

    def _notes(self, argument: SSAValue) -> Mapping[str, Attribute]:
        """Return what the writer noted at an argument: what MLIR's types do not say."""
        index = self.func.body.blocks[0].args.index(cast("Any", argument))
        return {} if self.func.arg_attrs is None else self.func.arg_attrs.data[index].data

    def run(self, block: Block, terminator: str) -> list[SSAValue]:
        """Read the ops of a block; return the operands of its terminator."""
        for op in block.ops:
            if op.name == terminator:
                self.seen.add(op)
                return list(op.operands)
            with located(f"{self.place(op)}: {op.name}"):
                try:
                    self._op(op)
                except (AttributeError, IndexError, KeyError, ValueError) as error:
                    raise SpecError(f"operands or attributes are not formed as expected ({error})") from error
            self.seen.add(op)
        raise SpecError(f"{self.place(cast('Operation', block.parent_op()))}: expected {terminator} at its end")

    def _op(self, op: Operation) -> None:
        handler = self.handlers.get(op.name)
        if handler is not None:
            handler(self, op)
        elif op.name in SCALAR_OPS:
            if is_tensor(op.results[0].type):
                self.handlers["linalg.map"](self, op)
            else:
                self.scalar_op(op, ())
        else:
            raise SpecError("the operation is not known here; docs/mlir.md lists those that are")

    def _outputs(self, returned: Sequence[SSAValue], place: str) -> list[str]:
        """Return the tensors that hold the results, each its own."""
        values = [self._as_view(v) for v in returned]
        names = [self.name(v) for v in returned]
        outputs: list[str | None] = [None] * len(values)
        temporaries = {w.op.target for w in self.draft.ops}
        for k, v in enumerate(values):
            if isinstance(v, View) and v.identity and v.tensor in temporaries and v.tensor not in outputs:
                outputs[k] = v.tensor
        for k, v in enumerate(values):
            if outputs[k] is None and isinstance(v, View) and v.inverse and v.tensor in temporaries - set(outputs):
                made = self.draft.retarget(v, names[k])
                cells = {f"cell.{n}": e for n, e in enumerate(v.index)}
                for n, other in enumerate(values):
                    if isinstance(other, View) and other.tensor == v.tensor:
                        cells = {f"cell.{m}": e for m, e in enumerate(other.index)}
                        index = tuple(e.substitute(cells) for e in v.inverse)
                        values[n] = View(made.tensor, other.dtype, other.shape, index)
                temporaries.discard(v.tensor)
                outputs[k] = made.tensor
        for k, v in enumerate(values):
            if outputs[k] is None:
                outputs[k] = self.copy(v, names[k], place).tensor
        return cast("list[str]", outputs)

    def _as_view(self, value: SSAValue) -> Value:
        found = self.values[value]
        return Uniform(found.dtype, (), found, found.dtype[0] == "i") if isinstance(found, _SCALAR) else found

    # ---- what the handlers use
    def place(self, op: Operation) -> str:
        """Return where an op stands."""
        return self.module.place(op)

    def name(self, value: SSAValue) -> str:
        """Return the name of a value as it stands in the text."""
        return self.module.names.get(value, "v")

    def tensor(self, value: SSAValue) -> Value:
        """Return a value that is a tensor."""
        found = self.values[value]
        if isinstance(found, _SCALAR):
            raise SpecError(f"%{self.name(value)}: expected a tensor, got a scalar")
        return found

    def scalar(self, value: SSAValue) -> Scalar:
        """Return a value that is a scalar."""
        found = self.values.get(value)
        if not isinstance(found, _SCALAR):
            raise SpecError(f"%{self.name(value)}: expected a scalar, got a tensor")
        return found

    def size(self, value: SSAValue) -> Affine:
        """Return an index value as an affine expression."""
        found = self.scalar(value)
        if isinstance(found, Index):
            return found.expr
        if isinstance(found, Const) and not isinstance(found.value, float):
            return Affine(int(found.value))
        raise SpecError(
            f"%{self.name(value)} is no affine expression of dims and sizes, as a subscript or size has to be"
        )

    def mixed(self, op: Operation, name: str, operands: Sequence[SSAValue]) -> list[Affine]:
        """Return a list of numbers in which dynamic entries are ``operands`` in order."""
        rest = iter(operands)
        return [self.size(next(rest)) if n == DYNAMIC else Affine(n) for n in integers(attribute(op, name))]

    def groups(self, op: Operation) -> list[list[SSAValue]]:
        """Return the operands of an op by its segments."""
        sizes = integers(attribute(op, "operandSegmentSizes")) or (len(op.operands),)
        made: list[list[SSAValue]] = []
        start = 0
        for n in sizes:
            made.append(list(op.operands[start : start + n]))
            start += n
        return made

    def shape(self, kind: Attribute, known: Sequence[Affine], what: str) -> Shape:
        """Return the shape of a result: ``known`` where its type is dynamic, else the type's, which must agree."""
        sizes = sizes_of(kind)
        if len(sizes) != len(known):
            raise SpecError(f"{what}: expected {len(known)} axes, got {len(sizes)} in `{kind}`")
        for k, (n, e) in enumerate(zip(sizes, known, strict=True)):
            if n is not None:
                self.draft.sizes.tie(e, Affine(n), lambda k=k: f"{what}, axis {k}")
        return tuple(e if n is None else Affine(n) for n, e in zip(sizes, known, strict=True))

    def define(self, value: SSAValue, made: Value | Scalar) -> None:
        """Note what a value stands for."""
        self.values[value] = made

    def new(self, result: SSAValue, shape: Shape, like: Value | None = None, noted: Attribute | None = None) -> View:
        """Return a new tensor that holds a result, of the dtype that is noted, or that of ``like``."""
        signless = self.signless(like) if like is not None else is_signless(result.type)
        dtype = dtype_of(result.type) if like is None else like.dtype
        if noted is not None:
            dtype, signless = noted_dtype(result.type, noted), False
        return self.draft.declare(self.name(result), dtype, shape, signless=signless)

    def signless(self, value: Value) -> bool:
        """Whether a value's dtype is one that MLIR leaves open."""
        if isinstance(value, View):
            return self.draft.signless(value.tensor)
        return value.signless

    def copy(self, value: Value, name: str, place: str) -> View:
        """Write a value to a tensor of its own."""
        made = self.draft.declare(name, value.dtype, value.shape, signless=self.signless(value))
        dims = tuple(f"d{k}" for k in range(len(value.shape)))
        index = tuple(Affine.dim(d) for d in dims)
        self.draft.write(made, Written(dims, value.shape, index, self.draft.load(value, index)), place)
        return made

    def reusable(self, op: Operation, value: SSAValue) -> View | None:
        """Return the tensor of ``value`` if ``op`` may write into it: nothing else looks at it from here on."""
        found = self.values[value]
        if not isinstance(found, View) or not found.identity or found.tensor in self.pinned:
            return None
        if found.tensor not in self.updated and all(w.op.target != found.tensor for w in self.draft.ops):
            return None
        for other, view in self.values.items():
            if not isinstance(view, View) or view.tensor != found.tensor:
                continue
            mine = 0
            for use in other.uses:
                if use.operation is op and other is value:
                    mine += 1
                elif not self._done(use.operation):
                    return None
            if mine > 1:
                return None
        return found

    def _done(self, op: Operation | None) -> bool:
        while op is not None:
            if op in self.seen:
                return True
            op = op.parent_op()
        return False

    # ---- scalars
    def block(self, block: Block, leaves: Sequence[Scalar], dims: Sequence[str]) -> list[Scalar]:
        """Return what a body yields for the values of its arguments."""
        if len(block.args) != len(leaves):
            raise SpecError(f"the body takes {len(block.args)} arguments, expected {len(leaves)}, one an operand")
        for argument, leaf in zip(block.args, leaves, strict=True):
            dtype = dtype_of(argument.type)
            if dtype != leaf.dtype and not (is_signless(argument.type) and dtype[1:] == leaf.dtype[1:]):
                raise SpecError(f"the body's argument %{self.name(argument)} is {dtype}, its operand {leaf.dtype}")
            self.values[argument] = leaf
        for op in block.ops:
            if op.name in ("linalg.yield", "tensor.yield"):
                return [self.scalar(v) for v in op.operands]
            with located(f"{self.place(op)}: {op.name}"):
                self.scalar_op(op, dims)
        raise SpecError("the body has no yield at its end")

    def scalar_op(self, op: Operation, dims: Sequence[str]) -> None:
        """Read one scalar op."""
        if op.name == "linalg.index":
            (k,) = integers(attribute(op, "dim"))
            if not 0 <= k < len(dims):
                raise SpecError(f"index {k}: expected a dim from 0 to {len(dims) - 1}")
            self.values[op.results[0]] = Index(Affine.dim(dims[k]))
        elif op.name in ("arith.constant", "tensor.extract", "tensor.dim"):
            self.handlers[op.name](self, op)
        elif op.name in SCALAR_OPS:
            self.values[op.results[0]] = self._computed(op)
        else:
            raise SpecError("the operation is not known in a body; docs/mlir.md lists those that are")

    def _computed(self, op: Operation) -> Scalar:
        arguments = [self.scalar(v) for v in op.operands]
        noted = attribute(op, "polyq.dtype")
        dtype = noted_dtype(op.results[0].type, noted)
        if op.name in CASTS and (noted is not None or attribute(op, "polyq.exact") is not None):
            return Cast(arguments[0], dtype)
        fn = texts(attribute(op, "polyq.fn"))
        if fn:
            return apply(fn[0], arguments[-1])
        predicate = integers(attribute(op, "predicate"))
        return SCALAR_OPS[op.name](arguments, dtype, str(predicate[0]) if predicate else "")


# ---- regions
def _region(r: ModuleReader, op: Operation) -> None:
    """Read the ops of a dispatch region as if they stood outside of it; that they stand together is a hint."""
    before = len(r.draft.ops)
    values = r.run(op.regions[0].blocks[0], "flow.return")
    if len(values) != len(op.results):
        raise SpecError(f"flow.return: expected {len(op.results)} values, got {len(values)}")
    for result, value in zip(op.results, values, strict=True):
        if result.type != value.type:
            raise SpecError(f"flow.return: expected {result.type}, got {value.type}")
        r.define(result, r.values[value])
    together = dict.fromkeys(w.op.target for w in r.draft.ops[before:])
    r.draft.note(
        f"dispatch region at line {r.module.line(op)}: the ops of {', '.join(together)} stand together, a hint"
    )

"""A spec as HTML."""

from __future__ import annotations

from collections.abc import Mapping

from polyq.affine.html import Content, Html, code, page, table, tag, verbatim
from polyq.affine.spec import Spec, Tensor

__all__ = ["notes", "program", "spec_page", "tensors"]


def spec_page(spec: Spec) -> str:
    """Return the page of a spec: its tensors, its statements, its notes."""
    return page("program", spec.name, tensors(spec), program(spec), *notes(spec))


def tensors(spec: Spec, roles: Mapping[str, str] | None = None) -> Html:
    """Return a table of what comes in, what goes out, and what stays inside; ``roles`` has more to say of some."""
    rows: list[tuple[Content, ...]] = []
    for tensor in dict.fromkeys((*spec.inputs, *spec.outputs, *spec.temporaries)):
        more = (roles or {}).get(tensor.name)
        role = _role(spec, tensor)
        shape = f"[{', '.join(map(str, tensor.shape))}]" if tensor.shape else "one number"
        rows.append((code(tensor.name, "name"), tensor.dtype, shape, f"{role}, {more}" if more else role))
    return table(("tensor", "dtype", "shape", "role"), rows) if rows else Html("")


def program(spec: Spec) -> Html:
    """Return the statements."""
    return verbatim("\n".join(map(str, spec.ops))) if spec.ops else Html("")


def notes(spec: Spec) -> tuple[Html, ...]:
    """Return a paragraph for each note."""
    return tuple(tag("p", tag("span", "note ", style="soft"), note) for note in spec.notes)


def _role(spec: Spec, tensor: Tensor) -> str:
    given, made = tensor.name in spec.input_names, tensor.name in spec.output_names
    return "input, updated" if given and made else "input" if given else "output" if made else "temporary"

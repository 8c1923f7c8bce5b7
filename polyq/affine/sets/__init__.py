"""Integer sets and relations: the one boundary to isl.

:class:`Domain` is a set of integer points with named dims; :class:`Relation` relates two of them. Both may depend on
parameters, all of which are at least 0. Values are frozen: every operation returns a new one. Nothing outside this
package sees a raw isl object, and isl never sees a name of the user: dims are positions there, and parameters carry
encoded names. Sets are built from affine expressions, never from text.

Domains are compared by :meth:`Domain.equals`; ``==`` is identity.
"""

from __future__ import annotations

from polyq.affine.sets.domain import Domain
from polyq.affine.sets.raw import Point, SearchLimit, limited
from polyq.affine.sets.relation import Relation, last_writers

__all__ = ["Domain", "Point", "Relation", "SearchLimit", "last_writers", "limited"]

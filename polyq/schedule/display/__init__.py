"""A schedule as a loop tree: its data, its text for a terminal, its HTML for a notebook."""

from polyq.schedule.display.page import tree_page
from polyq.schedule.display.text import byte_size, loop_tree
from polyq.schedule.display.tree import tree_of

__all__ = ["byte_size", "loop_tree", "tree_of", "tree_page"]

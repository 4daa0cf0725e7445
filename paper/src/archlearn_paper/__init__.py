"""The paper's experiments and the methods compared with; may change at any time."""

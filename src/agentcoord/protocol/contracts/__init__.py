"""What the published contracts say, as types and as decisions: one module a contract.

The schemas below schema/state/v1 and contracts/ say the same to other programs, as far as a schema can; what it
cannot say is a function here. Nothing reads a clock or a store (spec: contracts).
"""

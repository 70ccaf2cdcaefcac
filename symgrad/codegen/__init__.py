"""Machine code: loop nests, products, vector maths and the native entry, emitted as LLVM IR.

The only package that knows LLVM. Start reading at `symgrad.codegen.build`.
"""

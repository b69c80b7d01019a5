"""How the shipped drafters are made: on-policy text, target features, EAGLE-3, DFlash, replay, export.

Every stage is one module and one command of ``python -m whiflash_engine.training``; each reads what the stage
before wrote below one work folder, and can be stopped and started again.
"""

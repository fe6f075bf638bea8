from __future__ import annotations
def cases(): return ()

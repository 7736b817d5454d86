#!/usr/bin/env python3
"""The shared library exports exactly the functions that the public headers declare with MOEPACK_API."""
import re
import subprocess
import sys

library, headers = sys.argv[1], sys.argv[2:]
declared = set()
for header in headers:
    with open(header, encoding="utf-8") as source:
        text = re.sub(r"/\*.*?\*/", " ", source.read(), flags=re.S)
    declared |= set(re.findall(r"MOEPACK_API\b[^;(]*?\b(moepack_\w+)\s*\(", text))
listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
exported = {line.split()[-1].split("@")[0] for line in listing.splitlines() if line.strip()}
for name in sorted(exported - declared):
    print(f"exported but not in a public header: {name}")
for name in sorted(declared - exported):
    print(f"declared but not exported: {name}")
print(f"{len(exported)} symbols exported, {len(declared)} declared")
sys.exit(0 if exported == declared and declared else 1)

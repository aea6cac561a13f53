"""The layers and who imports whom, read from the code by what the tests hold it to, as SVG.

An arc diagram: the layers stand in a column, in their order, and each import is an arc. All arcs lead upwards, or the tests fail.
"""

from __future__ import annotations

from test_architecture import LAYERS, PATHS, SURFACES, imported_layers, layer_of

ROW, LEFT, TOP = 22, 150, 16


def imports() -> set[tuple[str, str]]:
    """(importing layer, imported layer)."""
    owns = [(path, layer_of(path)) for path in PATHS]
    return {(own, other) for path, own in owns if own != "__init__" for other in imported_layers(path)}


def draw() -> str:
    edges = imports()
    middle = {name: TOP + ROW * i for i, name in enumerate(LAYERS)}
    height = TOP + ROW * len(LAYERS)
    reach = max(middle[a] - middle[b] for a, b in edges)
    width = LEFT + 40 + reach / 2
    lines = [f'<svg class="imports" viewBox="0 0 {width:.0f} {height}" xmlns="http://www.w3.org/2000/svg">']
    for a, b in sorted(edges, key=lambda edge: middle[edge[1]] - middle[edge[0]]):
        radius = (middle[a] - middle[b]) / 2
        arc = f"M {LEFT} {middle[a]} A {radius} {radius} 0 0 0 {LEFT} {middle[b]}"
        lines.append(f'<path class="edge" d="{arc}"><title>{a} imports {b}</title></path>')
    for name, y in middle.items():
        weight = ' font-weight="bold"' if name in SURFACES or not name.startswith("_") else ""
        lines.append(
            f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end"{weight}>{name}</text><circle class="dot" cx="{LEFT}" cy="{y}" r="3"/>'
        )
    return "\n".join([*lines, "</svg>"])

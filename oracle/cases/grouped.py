"""Convolutions in groups of channels, and gradients of depthwise ones; TensorFlow's CPU kernels have no others."""

from casekit import Rand, case, i32

# Input channels, those of a group, output channels.
GROUPS = [(6, 1, 6), (20, 1, 20), (5, 1, 15), (12, 3, 8), (16, 4, 16), (8, 4, 40)]
WINDOWS = [((3, 3), 1, 1, "SAME"), ((7, 7), 1, 1, "SAME"), ((5, 2), 2, 1, "VALID"), ((1, 5), 1, 1, "SAME"),
           ((3, 3), 1, 2, "SAME")]


def cases():
    r = Rand("grouped")
    one = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    for in_c, per, out_c in GROUPS:
        for (h, w), step, dilation, padding in WINDOWS:
            how = {"strides": [1, step, step, 1], "dilations": [1, dilation, dilation, 1], "padding": padding}
            yield case("Conv2D", r("float", (1, 5, 6, in_c)), r("float", (h, w, per, out_c)), **how)
        yield case("Conv2D", r("float", (1, 5, 4, in_c)), r("float", (3, 3, per, out_c)), nchw=((0,), (0,)), **one)
        if per == 1:
            # TensorFlow's CPU kernels of these gradients do not look at dilations.
            for step in (1, 2):
                how = {"strides": [1, step, step, 1], "padding": "SAME"}
                out = r("float", (2, -(-5 // step), -(-6 // step), out_c))
                image, kernel = (2, 5, 6, in_c), (3, 5, in_c, out_c // in_c)
                yield case("DepthwiseConv2dNativeBackpropInput", i32(*image), r("float", kernel), out, **how)
                yield case("DepthwiseConv2dNativeBackpropFilter", r("float", image), i32(*kernel), out, **how)
    for dtype in ("half", "bfloat16", "double"):
        yield case("Conv2D", r(dtype, (1, 5, 4, 8)), r(dtype, (3, 3, 1, 8)), **one)

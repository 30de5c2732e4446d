"""The nodes of a graph. Each owns its algebra: what it computes, its intervals, the way back, its ONNX operators."""

from lipgraft.network.nodes.activation import Activation, Graft
from lipgraft.network.nodes.conv import Conv
from lipgraft.network.nodes.conv_transpose import ConvTranspose
from lipgraft.network.nodes.elementwise import Add, Pad, Reshape, Scale
from lipgraft.network.nodes.linear import Linear
from lipgraft.network.nodes.max_pool import MaxPool
from lipgraft.network.nodes.node import Affine, Cache, Input, Node, Shape
from lipgraft.network.nodes.pick import Pick
from lipgraft.network.nodes.planar import Cosine, Floor, Planar, Power, Product, Quotient, Sign, Sine

__all__ = [
    "Activation",
    "Add",
    "Affine",
    "Cache",
    "Conv",
    "ConvTranspose",
    "Cosine",
    "Floor",
    "Graft",
    "Input",
    "Linear",
    "MaxPool",
    "Node",
    "Pad",
    "Pick",
    "Planar",
    "Power",
    "Product",
    "Quotient",
    "Reshape",
    "Scale",
    "Shape",
    "Sign",
    "Sine",
]

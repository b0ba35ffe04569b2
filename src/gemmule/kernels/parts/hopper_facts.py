"""Facts of Hopper that kernels of several families count on."""

#: Threads of a warpgroup.
WARPGROUP = 128
#: SMs of an H100 or H200 SXM.
SMS = 132

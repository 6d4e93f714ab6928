"""Launch plans that measured faster than their rule.  Written by `tools/gpu_tune.py --write`."""

from .harness.plans import Measured

# fmt: off
MEASURED: tuple[Measured, ...] = (
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 8, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (50.560, 49.138), (48.668, 46.606), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (50.220, 50.464), (48.690, 47.893), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 152064, 'form': 'bits_kernel mass'},
        {'block': 32768, 'num_warps': 16},
        (235.984, 231.904), (214.224, 213.024), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 16, 'groups': 512, 'pool_size': '4'},
        {'block': 128, 'num_warps': 8},
        (1.943, 1.606), (1.866, 1.476), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 56, 'groups': 512, 'pool_size': '16'},
        {'block': 64, 'num_warps': 1},
        (2.172, 2.010), (2.122, 1.923), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'ROWS': 2, 'num_warps': 4},
        (8.369, 7.983), (8.129, 7.971), 7, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_tokens', 'NVIDIA H200',
        {'assignments': 8192, 'hidden': 4096, 'item': '2', 'top_k': '2'},
        {'STORE': '', 'num_warps': 16},
        (37.876, 38.723), (36.704, 37.638), 7, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 65536, 'hidden': 2, 'item': '2', 'top_k': '4'},
        {'ROWS': 32, 'num_warps': 4},
        (4.367, 3.961), (3.087, 2.701), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_blocks', 'NVIDIA H200',
        {'assignments': 4, 'hidden': 2, 'item': '2'},
        {'ROWS': 8, 'num_warps': 4},
        (2.235, 1.715), (1.936, 1.510), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'TILE': 2048, 'num_warps': 2},
        (5.481, 3.541), (5.350, 3.352), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_search', 'NVIDIA H200',
        {'assignments': 64, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'TILE': 512, 'num_warps': 8},
        (4.490, 3.031), (3.756, 2.478), 15, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 1024, 'length': 4096, 'item': '4', 'way': 'into the pool'},
        {'num_warps': 1, 'num_stages': 1},
        (12.195, 9.002), (11.404, 8.134), 19, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
)

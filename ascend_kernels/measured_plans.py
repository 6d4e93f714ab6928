"""Launch plans that measured faster than their rule.  Written by `tools/gpu_tune.py --write`."""

from .harness.plans import Measured

# fmt: off
MEASURED: tuple[Measured, ...] = (
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 32, 'length': 4, 'item': '8'},
        {'block': 64, 'num_warps': 4},
        (25.260, 21.877), (24.619, 21.202), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 152064, 'form': 'bits_kernel count'},
        {'block': 32768, 'num_warps': 16},
        (180.000, 175.349), (170.923, 167.445), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 8, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (50.599, 49.063), (48.679, 46.688), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (51.634, 50.336), (49.369, 48.007), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 152064, 'form': 'bits_kernel mass'},
        {'block': 32768, 'num_warps': 16},
        (231.632, 227.296), (198.688, 196.501), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 1, 'groups': 512, 'pool_size': '4'},
        {'block': 512, 'num_warps': 4},
        (1.764, 1.503), (1.677, 1.431), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 16, 'groups': 512, 'pool_size': '4'},
        {'block': 128, 'num_warps': 8},
        (1.936, 1.592), (1.883, 1.496), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 56, 'groups': 512, 'pool_size': '16'},
        {'block': 64, 'num_warps': 1},
        (2.179, 2.000), (2.127, 1.922), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'ROWS': 2, 'num_warps': 4},
        (8.366, 7.793), (8.139, 7.770), 7, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_tokens', 'NVIDIA H200',
        {'assignments': 8192, 'hidden': 4096, 'item': '2', 'top_k': '2'},
        {'STORE': '', 'num_warps': 16},
        (38.170, 38.455), (37.213, 37.501), 7, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 65536, 'hidden': 2, 'item': '2', 'top_k': '4'},
        {'ROWS': 32, 'num_warps': 4},
        (4.363, 3.959), (3.080, 2.703), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_blocks', 'NVIDIA H200',
        {'assignments': 4, 'hidden': 2, 'item': '2'},
        {'ROWS': 8, 'num_warps': 4},
        (2.216, 1.659), (1.900, 1.463), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'TILE': 2048, 'num_warps': 2},
        (5.546, 3.616), (5.389, 3.438), 11, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_search', 'NVIDIA H200',
        {'assignments': 64, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'TILE': 512, 'num_warps': 8},
        (4.457, 2.994), (3.766, 2.470), 15, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.wgrad_blocks', 'NVIDIA H200',
        {'assignments': 4, 'hidden': 2, 'item': '2', 'top_k': '1'},
        {'ROWS': 16, 'num_warps': 4},
        (2.009, 1.679), (1.911, 1.508), 23, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
)

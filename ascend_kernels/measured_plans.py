"""Launch plans that measured faster than their rule.  Written by `tools/gpu_tune.py --write`."""

from .harness.plans import Measured

# fmt: off
MEASURED: tuple[Measured, ...] = (
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 32, 'length': 4, 'item': '8'},
        {'block': 64, 'num_warps': 4},
        (25.463, 22.624), (24.766, 22.626), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 32, 'length': 16, 'item': '8'},
        {'block': 64, 'num_warps': 4},
        (28.584, 24.999), (27.968, 24.928), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 8, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (50.120, 48.772), (48.182, 46.460), 9, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 32000, 'form': 'bits_kernel mass'},
        {'block': 8192, 'num_warps': 32},
        (50.563, 49.081), (48.581, 46.514), 9, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'eagle.vocabulary', 'NVIDIA H200',
        {'rows': 32, 'vocab': 152064, 'form': 'bits_kernel mass'},
        {'block': 32768, 'num_warps': 16},
        (234.043, 227.040), (213.038, 209.840), 9, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 1, 'groups': 512, 'pool_size': '4'},
        {'block': 128, 'num_warps': 8},
        (1.336, 1.312), (1.227, 1.218), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 16, 'groups': 512, 'pool_size': '4'},
        {'block': 128, 'num_warps': 8},
        (1.421, 1.423), (1.294, 1.316), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 8192, 'groups': 512, 'pool_size': '4'},
        {'block': 512, 'num_warps': 4},
        (23.855, 23.738), (23.217, 23.136), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'kpool.groups', 'NVIDIA H200',
        {'rows': 56, 'groups': 512, 'pool_size': '16'},
        {'block': 64, 'num_warps': 1},
        (1.989, 1.997), (1.915, 1.958), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'ROWS': 2, 'num_warps': 2},
        (8.728, 8.096), (8.338, 7.804), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_tokens', 'NVIDIA H200',
        {'assignments': 8192, 'hidden': 4096, 'item': '2', 'top_k': '2'},
        {'STORE': '.cs', 'num_warps': 16},
        (39.824, 39.674), (38.889, 38.697), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 512, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'ROWS': 2, 'num_warps': 8},
        (29.744, 29.748), (29.050, 29.122), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.gather_blocks', 'NVIDIA H200',
        {'assignments': 65536, 'hidden': 2, 'item': '2', 'top_k': '4'},
        {'ROWS': 32, 'num_warps': 4},
        (4.069, 3.948), (2.740, 2.707), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_blocks', 'NVIDIA H200',
        {'assignments': 4, 'hidden': 2, 'item': '2'},
        {'ROWS': 8, 'num_warps': 4},
        (1.461, 1.490), (1.301, 1.331), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'TILE': 2048, 'num_warps': 4},
        (4.899, 4.489), (4.587, 4.410), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_search', 'NVIDIA H200',
        {'assignments': 64, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'TILE': 512, 'num_warps': 8},
        (2.832, 2.838), (2.283, 2.318), 16, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.scatter_search', 'NVIDIA H200',
        {'assignments': 512, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'TILE': 4096, 'num_warps': 8},
        (4.698, 4.753), (3.924, 3.959), 16, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.wgrad_blocks', 'NVIDIA H200',
        {'assignments': 2048, 'hidden': 1536, 'item': '2', 'top_k': '2'},
        {'TILE': 1024, 'num_warps': 4},
        (4.290, 3.744), (4.111, 3.639), 12, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.wgrad_blocks', 'NVIDIA H200',
        {'assignments': 512, 'hidden': 7168, 'item': '2', 'top_k': '8'},
        {'TILE': 512, 'num_warps': 1},
        (3.804, 3.860), (3.704, 3.727), 16, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 512, 'length': 2, 'item': '4'},
        {'block': 64, 'num_warps': 2},
        (1.859, 1.892), (1.790, 1.820), 8, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'token_pool.spans', 'NVIDIA H200',
        {'requests': 1024, 'length': 4096, 'item': '4'},
        {'block': 4096, 'num_warps': 1},
        (12.397, 9.008), (11.659, 8.187), 16, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.wgrad_blocks', 'NVIDIA H200',
        {'assignments': 4, 'hidden': 2, 'item': '2', 'top_k': '1'},
        {'ROWS': 16, 'num_warps': 8},
        (1.555, 1.562), (1.385, 1.437), 24, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
    Measured(
        'padded_moe.wgrad_blocks', 'NVIDIA H200',
        {'assignments': 65536, 'hidden': 2, 'item': '2', 'top_k': '4'},
        {'ROWS': 64, 'num_warps': 2},
        (3.037, 2.681), (2.952, 2.703), 24, {'torch': '2.11.0+cu130', 'triton': '3.6.0'},
    ),
)

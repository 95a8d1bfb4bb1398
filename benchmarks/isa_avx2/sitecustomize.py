"""Mis dans PYTHONPATH par cpu_compare.py --isa avx2 : vLLM, et ses processus fils, croient à un processeur sans AVX-512.

vLLM choisit ses noyaux compilés d'après ces deux réponses de torch (`vllm/platforms/cpu.py`, `import_kernels`).
"""

import torch

torch.cpu._is_avx512_supported = torch.cpu._is_avx512_bf16_supported = lambda: False

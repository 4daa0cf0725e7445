"""Compact models for other programs: ONNX, torch.export, Python source, Hugging Face folders."""

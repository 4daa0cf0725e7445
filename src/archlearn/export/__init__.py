"""Compact models for other programs: ONNX, torch.export, Hugging Face folders."""

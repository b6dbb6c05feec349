"""Models to and from Hugging Face transformers and CTranslate2."""

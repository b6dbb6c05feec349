"""Export models to transformers, CTranslate2 and Argos. Import models from these three, and from Marian and Firefox."""

"""Export models to transformers, CTranslate2 and Argos. Import models of these three, Marian and Firefox."""

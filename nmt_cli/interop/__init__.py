"""Export models to transformers, CTranslate2 and Argos, and import models of these, of Marian and of Firefox."""

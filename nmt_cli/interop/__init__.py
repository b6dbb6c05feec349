"""Export models to transformers and CTranslate2, and import models of transformers and Marian."""

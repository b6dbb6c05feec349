"""The Transformer of "Attention Is All You Need": the network, its decoding cache, and model directories."""

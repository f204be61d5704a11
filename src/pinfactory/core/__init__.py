"""The principle, and nothing else: no scikit-learn, no Gymnasium, no images, no files."""

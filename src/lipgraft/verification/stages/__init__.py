"""The stages before branch and bound, in order: predict, attack, crown, alpha_crown."""

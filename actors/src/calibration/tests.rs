//! What is calibrated, and what follows from it.

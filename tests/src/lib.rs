//! Whole-system tests of Tandem.

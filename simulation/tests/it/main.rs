//! The scenarios of coordination's rules, each with the variant that drops the rule.

mod coordination;
mod poison;

//! A switch that breaks one rule of a service on purpose, for the tests that must notice it.
//!
//! A test of a guarantee proves nothing until it has failed. Each service therefore has an enum of
//! rules, and a scenario passes on the real code and fails on the [`Mutant`] of its rule. Programs
//! that are shipped must not contain those branches. Without the feature `mutants` this type has no
//! size and [`Mutant::breaks`] is the constant `false`, so the compiler removes them. Only
//! development dependencies turn the feature on.

/// Stands in every program that contains mutants, so that a test of the shipped one can look for it.
#[cfg(feature = "mutants")]
#[used]
static MARK: [u8; 32] = *b"landfast: compiled with mutants\n";

/// A rule that is broken on purpose, or none. `R` is the service's enum of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutant<R> {
    #[cfg(feature = "mutants")]
    rule: Option<R>,
    rules: std::marker::PhantomData<R>,
}

impl<R: Copy + PartialEq> Mutant<R> {
    /// The correct program.
    pub const NONE: Self = Self {
        #[cfg(feature = "mutants")]
        rule: None,
        rules: std::marker::PhantomData,
    };

    /// The program that breaks `rule`.
    #[cfg(feature = "mutants")]
    pub const fn of(rule: R) -> Self {
        Self {
            rule: Some(rule),
            rules: std::marker::PhantomData,
        }
    }

    /// Whether this program breaks `rule`.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn breaks(self, rule: R) -> bool {
        #[cfg(feature = "mutants")]
        let breaks = self.rule == Some(rule);
        #[cfg(not(feature = "mutants"))]
        let breaks = {
            let _ = rule;
            false
        };
        breaks
    }

    /// Whether this program breaks any rule.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn is_any(self) -> bool {
        #[cfg(feature = "mutants")]
        let is_any = self.rule.is_some();
        #[cfg(not(feature = "mutants"))]
        let is_any = false;
        is_any
    }
}

impl<R: Copy + PartialEq> Default for Mutant<R> {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(feature = "mutants")]
impl<R: Copy + PartialEq> From<Option<R>> for Mutant<R> {
    fn from(rule: Option<R>) -> Self {
        rule.map_or(Self::NONE, Self::of)
    }
}

#[cfg(feature = "mutants")]
impl<R: Copy + PartialEq> From<R> for Mutant<R> {
    fn from(rule: R) -> Self {
        Self::of(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::Mutant;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Rule {
        First,
        Second,
    }

    #[test]
    fn the_correct_program_breaks_no_rule() {
        assert!(!Mutant::NONE.breaks(Rule::First));
        assert!(!Mutant::<Rule>::default().is_any());
    }

    #[test]
    fn a_mutant_breaks_its_rule_alone() {
        let mutant = Mutant::of(Rule::First);
        assert!(mutant.breaks(Rule::First) && mutant.is_any());
        assert!(!mutant.breaks(Rule::Second));
    }
}

// SPDX-License-Identifier: GPL-2.0-or-later
//! The names of users, accounts and the like, each kept once.

use std::collections::HashMap;
use std::rc::Rc;

/// The most names, so that a log cannot fill the memory. Later names are counted under [`Name::OTHERS`].
pub const MOST: usize = 1 << 15;

/// The longest name, in bytes. A longer one is cut.
const LONGEST: usize = 128;

/// A name. The default: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(u32);

impl NameId {
    pub const UNKNOWN: Self = Self(0);
    pub const OTHERS: Self = Self(1);
}

/// All names of a summary.
#[derive(Default)]
pub struct Names {
    known: HashMap<Rc<str>, NameId>,
    texts: Vec<Rc<str>>,
}

impl Names {
    /// The name with this text; an empty one is none.
    pub fn of(&mut self, text: Option<&str>) -> NameId {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return NameId::UNKNOWN };
        let end = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let text = end.and_then(|end| text.get(..end)).unwrap_or(text);
        if let Some(name) = self.known.get(text) {
            return *name;
        }
        let Some(number) = u32::try_from(self.texts.len()).ok().filter(|_| self.texts.len() < MOST) else {
            return NameId::OTHERS;
        };
        let (text, name) = (Rc::<str>::from(text), NameId(number + 2));
        self.texts.push(Rc::clone(&text));
        self.known.insert(text, name);
        name
    }

    /// The text of a name. `None`: the name is not known, or stands for those beyond [`MOST`].
    pub fn text(&self, name: NameId) -> Option<&str> {
        let at = usize::try_from(name.0.checked_sub(2)?).ok()?;
        self.texts.get(at).map(|text| &**text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_again_and_there_are_not_too_many() {
        let mut names = Names::default();
        let alice = names.of(Some("alice"));
        assert_eq!((names.of(Some("alice")), names.text(alice)), (alice, Some("alice")));
        assert_eq!((names.of(None), names.of(Some(""))), (NameId::UNKNOWN, NameId::UNKNOWN));
        for number in 0..MOST {
            names.of(Some(&number.to_string()));
        }
        assert_eq!((names.of(Some("new")), names.text(NameId::OTHERS)), (NameId::OTHERS, None));
        assert_eq!(names.of(Some("alice")), alice);
        let long = "ä".repeat(100);
        let mut names = Names::default();
        let cut = names.of(Some(&long));
        assert_eq!(names.text(cut).map(str::len), Some(LONGEST));
    }
}

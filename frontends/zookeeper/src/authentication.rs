//! Who a peer is: its address, its certificate, and the passwords that it sends. No I/O.
//!
//! As in ZooKeeper, any password is accepted, because it proves an identity that is made from it:
//! the user's name and a hash of both. ACLs name such identities, so no accounts are needed. Where
//! accounts are configured, no other password is accepted. One configured identity is also `super`,
//! which every ACL permits.

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use coordination::model::Identity;

/// The most bytes of names and hashes of one connection's identities. They travel with each of its
/// updates. An authentication beyond this fails.
pub(crate) const IDENTITIES_BYTES_MAX: usize = 4096;

/// The identity that every ACL permits: `super:` and the digest of its password. Never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct SuperDigest(pub String);

impl fmt::Debug for SuperDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(digest)")
    }
}

/// The identities that passwords may prove, each `USER:` and the digest of its password. Never
/// logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Accounts(pub Arc<BTreeSet<String>>);

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} accounts)", self.0.len())
    }
}

/// What a connection has proved, and what it must prove.
#[derive(Debug)]
pub struct Authentication {
    peer: Vec<Identity>,
    super_digest: Option<SuperDigest>,
    accounts: Option<Accounts>,
    is_required: bool,
    has_x509: bool,
    proved_bytes: usize,
    has_proved: bool,
}

impl Authentication {
    /// That of a connection from `address`, with the subject of its verified certificate. If
    /// `is_required`, only a certificate or a password opens it. With `accounts`, only their
    /// passwords and that of `super_digest` are accepted.
    pub fn new(
        address: IpAddr,
        subject: Option<String>,
        super_digest: Option<SuperDigest>,
        accounts: Option<Accounts>,
        is_required: bool,
    ) -> Self {
        let has_proved = subject.is_some();
        let mut peer = vec![identity("ip", text(address))];
        peer.extend(subject.map(|subject| identity("x509", subject)));
        Self {
            peer,
            super_digest,
            accounts,
            is_required,
            has_x509: false,
            proved_bytes: 0,
            has_proved,
        }
    }

    /// The same on a server with a secure port: ACLs may name the subjects of certificates.
    pub fn with_x509(self) -> Self {
        let has_x509 = true;
        Self { has_x509, ..self }
    }

    /// Whether ACLs may name the subjects of certificates.
    pub fn has_x509(&self) -> bool {
        self.has_x509
    }

    /// The identities that the network has proved.
    pub fn of_peer(&self) -> &[Identity] {
        &self.peer
    }

    /// Whether requests other than authentications are refused.
    pub fn is_missing(&self) -> bool {
        self.is_required && !self.has_proved
    }

    /// The identities that a proof shows. `None` if the scheme is unknown, the proof is missing, or
    /// the accounts lack it.
    pub fn prove(&mut self, scheme: Option<&str>, proof: Option<&[u8]>) -> Option<Vec<Identity>> {
        let proved = match scheme? {
            "digest" => self.digest(proof?)?,
            // The network has proved these. ZooKeeper ignores the proof too.
            known @ ("ip" | "x509") => {
                let of_scheme = self.peer.iter().filter(|one| one.scheme == known);
                return Some(of_scheme.cloned().collect())
                    .filter(|found: &Vec<_>| !found.is_empty());
            }
            _ => return None,
        };
        self.proved_bytes += proved.iter().map(|one| one.id.len()).sum::<usize>();
        if self.proved_bytes > IDENTITIES_BYTES_MAX {
            return None;
        }
        self.has_proved = true;
        Some(proved)
    }

    /// Whether a proof failed because the identities of the connection would take too many bytes.
    pub fn is_full(&self) -> bool {
        self.proved_bytes > IDENTITIES_BYTES_MAX
    }

    fn digest(&self, proof: &[u8]) -> Option<Vec<Identity>> {
        // As in ZooKeeper, invalid UTF-8 becomes U+FFFD, and a proof without a colon is a name.
        let proof = String::from_utf8_lossy(proof);
        let user = proof.split(':').next().unwrap_or_default();
        let hash = sha1_smol::Sha1::from(proof.as_bytes()).digest();
        let id = format!("{user}:{}", STANDARD.encode(hash.bytes()));
        let is_super = self
            .super_digest
            .as_ref()
            .is_some_and(|digest| digest.0 == id);
        let accounts = self.accounts.as_ref();
        if !is_super && accounts.is_some_and(|Accounts(known)| !known.contains(&id)) {
            return None;
        }
        let mut proved = vec![identity("digest", id)];
        if is_super {
            proved.insert(0, identity("super", String::new()));
        }
        Some(proved)
    }
}

fn identity(scheme: &str, id: String) -> Identity {
    Identity {
        scheme: scheme.to_owned(),
        id,
    }
}

/// An address as Java writes it: version 6 without an abbreviation of zeros.
fn text(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let parts = address.segments().map(|part| format!("{part:x}"));
            parts.join(":")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Authentication {
        let digest = "super:lK75jTNcA+U9vtVEw5vB51mj/w4=".to_owned();
        let address = address.parse().expect("an address");
        Authentication::new(address, None, Some(SuperDigest(digest)), None, false)
    }

    fn ids(proved: Option<Vec<Identity>>) -> Vec<String> {
        let shown = |one: Identity| format!("{}:{}", one.scheme, one.id);
        proved.unwrap_or_default().into_iter().map(shown).collect()
    }

    /// The hashes are ZooKeeper's (`tests/clients/testdata/accounts.txt`).
    #[test]
    fn a_password_proves_the_identity_that_is_made_from_it() {
        let mut one = of("127.0.0.1");
        let mut prove = |proof: &str| ids(one.prove(Some("digest"), Some(proof.as_bytes())));
        assert_eq!(
            prove("user:password"),
            ["digest:user:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY="]
        );
        assert_eq!(
            prove("nocolon"),
            ["digest:nocolon:Ra+cHr2ZoHvBjtNArFGNGlVie4g="]
        );
        assert_eq!(
            prove("super:secret"),
            ["super:", "digest:super:lK75jTNcA+U9vtVEw5vB51mj/w4="]
        );
        assert_eq!(prove("super:wrong").len(), 1);
    }

    #[test]
    fn an_unknown_scheme_or_a_missing_proof_shows_nothing() {
        let mut one = of("127.0.0.1");
        for scheme in ["", "super", "world", "auth", "sasl", "Digest", "x509"] {
            assert_eq!(one.prove(Some(scheme), Some(b"a:b")), None, "{scheme}");
        }
        assert_eq!(one.prove(Some("digest"), None), None);
        assert_eq!(one.prove(None, Some(b"a:b")), None);
    }

    #[test]
    fn an_address_is_written_as_in_java() {
        assert_eq!(
            ids(of("::1").prove(Some("ip"), None)),
            ["ip:0:0:0:0:0:0:0:1"]
        );
        assert_eq!(
            ids(of("::ffff:1.2.3.4").prove(Some("ip"), None)),
            ["ip:1.2.3.4"]
        );
    }

    #[test]
    fn a_certificate_or_a_password_is_enough_where_one_is_required() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let required = |subject| Authentication::new(address, subject, None, None, true);
        assert!(!required(Some("CN=a".into())).is_missing());
        let mut one = required(None);
        one.prove(Some("ip"), None).expect("an address");
        assert!(one.is_missing(), "an address is no proof");
        one.prove(Some("digest"), Some(b"a:b")).expect("a proof");
        assert!(!one.is_missing());
    }

    #[test]
    fn only_accounts_are_accepted_where_there_are_any() {
        let known = BTreeSet::from(["user:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=".to_owned()]);
        let accounts = Accounts(Arc::new(known));
        assert!(!format!("{accounts:?}").contains("tpUq"));
        let super_digest = SuperDigest("super:lK75jTNcA+U9vtVEw5vB51mj/w4=".to_owned());
        let with_accounts = || {
            let address = IpAddr::from([127, 0, 0, 1]);
            let (super_digest, accounts) = (super_digest.clone(), accounts.clone());
            Authentication::new(address, None, Some(super_digest), Some(accounts), true)
        };
        for wrong in ["user:other", "made:up", "nocolon", "", "super:wrong"] {
            let mut one = with_accounts();
            let proved = one.prove(Some("digest"), Some(wrong.as_bytes()));
            assert_eq!(proved, None, "{wrong}");
            assert!(one.is_missing(), "{wrong}");
        }
        for right in ["user:password", "super:secret"] {
            let mut one = with_accounts();
            let proved = one.prove(Some("digest"), Some(right.as_bytes()));
            assert!(proved.is_some() && !one.is_missing(), "{right}");
        }
    }

    #[test]
    fn proofs_beyond_the_bound_fail() {
        let mut one = of("127.0.0.1");
        let long = vec![b'u'; IDENTITIES_BYTES_MAX];
        assert_eq!(of("::1").prove(Some("digest"), Some(&long)), None);
        let accepted = (0..).take_while(|number| {
            let proof = format!("user{number}:x");
            one.prove(Some("digest"), Some(proof.as_bytes())).is_some()
        });
        assert!((50..200).contains(&accepted.count()));
        assert!(one.is_full() && !of("::1").is_full());
    }
}

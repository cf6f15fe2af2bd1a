//! Keys beside the files of a volume, which take effect together with them.

use bytes::Bytes;
use transactions::serializable::model::{NAME_BYTES_MAX, VALUE_BYTES_MAX};

use super::Transaction;
use crate::{
    error::{Errno, Result},
    inode,
};

impl Transaction {
    /// The value of a key. Errors: `ENAMETOOLONG` for one of more than 480 bytes.
    pub async fn get_key(&mut self, name: &Bytes) -> Result<Option<Bytes>> {
        check(name)?;
        self.overlay.get(inode::user_key(name.clone())).await
    }

    /// Sets a key; `None`: deletes it. Errors: `ENAMETOOLONG` for a key of more than 480 bytes,
    /// `EFBIG` for a value of more than 256 KiB, or for more than 1 GiB in one transaction.
    pub fn put_key(&mut self, name: &Bytes, value: Option<Bytes>) -> Result<()> {
        check(name)?;
        let key = inode::user_key(name.clone());
        match value {
            Some(value) if value.len() > VALUE_BYTES_MAX => return Err(Errno::EFBIG),
            Some(value) => {
                self.overlay.count_data(&value)?;
                self.overlay.put(key, value);
            }
            None => self.overlay.delete(key),
        }
        Ok(())
    }
}

fn check(name: &Bytes) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        Err(Errno::ENAMETOOLONG)
    } else {
        Ok(())
    }
}

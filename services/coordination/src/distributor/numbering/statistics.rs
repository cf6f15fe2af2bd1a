//! The statistics of quotas: how many znodes and how much data each subtree with a quota has.
//!
//! As in ZooKeeper, a change counts for the deepest znode above it, or itself, that has a quota.
//! The statistics are the data of a znode whose Stat does not show their changes. When that znode
//! is created, the subtree is counted once.
//!
//! Sums depend on what was applied before, so they cannot be computed again over a partly applied
//! slot. The slot in the log therefore contains them, and a successor takes them from there.

use std::borrow::Cow;

use bytes::Bytes;
use futures_util::future::try_join_all;
use ports::Result;

use super::Working;
use crate::{
    model::Zxid,
    path,
    quota::{self, Amounts},
    records::{Decided, Payload},
};

/// The most znodes that are counted when a quota is set on a subtree that exists. Meanwhile all
/// other updates wait.
const COUNTED_MAX: i64 = 100_000;

/// Znodes are listed together until they have this many children: a distant store answers many
/// calls in the time of one.
const LISTED_TOGETHER_MAX: i32 = 200;

impl<'decided> Working<'_, 'decided> {
    /// Notes a change of `path`, if it holds the limits of a quota.
    pub(super) async fn limits_changed(&mut self, path: &str) -> Result<()> {
        if self.quotas.is_none() || quota::top_of_limits(path).is_none() {
            return Ok(());
        }
        let data = match self.node(path).await? {
            Some(node) => Some(self.region.load(&node.data).await?.flatten()),
            None => None,
        };
        if let Some(quotas) = &mut self.quotas {
            match data {
                Some(data) => quotas.set(path, data.as_ref()),
                None => quotas.remove(path),
            }
        }
        Ok(())
    }

    /// The statistics after the batch. A client may have replaced those that it wrote.
    pub(super) fn last_statistics(&self) -> Vec<(String, Bytes)> {
        let are_last = |(path, text): &(&String, &Bytes)| {
            let node = self.nodes.get(path.as_str()).and_then(Option::as_ref);
            node.is_some_and(|node| node.data == Payload::Inline((*text).clone()))
        };
        let last = self.statistics.iter().filter(are_last);
        last.map(|(path, text)| (path.clone(), text.clone()))
            .collect()
    }

    /// Counts a change of `path` by `count` znodes and `bytes` of data.
    pub(super) async fn account(
        &mut self,
        zxid: Zxid,
        decided: &Decided,
        path: &str,
        (count, bytes): (i64, i64),
    ) -> Result<()> {
        let top = self.quotas.as_ref().and_then(|quotas| quotas.top(path));
        let Some(top) = top.filter(|_| (count, bytes) != (0, 0)) else {
            return Ok(());
        };
        let at = quota::statistics_path(&top);
        let Some(node) = self.node(&at).await? else {
            return Ok(());
        };
        let data = self.region.load(&node.data).await?.flatten();
        let Some(mut sums) = Amounts::parse(data.as_deref()) else {
            // A client wrote them, and may write them again.
            tracing::debug!(path = at, "the statistics of this quota are malformed");
            return Ok(());
        };
        sums.add(count, bytes);
        self.write_statistics(zxid, at.into(), sums.text().into())
            .await?;
        if let Some(quotas) = &mut self.quotas
            && (count > 0 || bytes > 0)
        {
            quotas.warn(&top, &sums, decided.time_ms);
        }
        Ok(())
    }

    /// Counts the subtree whose statistics znode `path` was created, if it is one.
    pub(super) async fn begin_statistics(&mut self, zxid: Zxid, path: &'decided str) -> Result<()> {
        let Some(top) = quota::top_of_statistics(path).filter(|_| self.quotas.is_some()) else {
            return Ok(());
        };
        let (count, bytes) = self.count(top).await?;
        let text = Amounts::new(count, bytes).text();
        self.write_statistics(zxid, path.into(), text.into()).await
    }

    /// The length of the statistics that the slot logs.
    pub(super) fn statistics_len(&self) -> usize {
        let texts = self.statistics.iter();
        texts.map(|(path, text)| 8 + path.len() + text.len()).sum()
    }

    /// Replaces the data of a statistics znode. Its Stat shows only the length.
    pub(super) async fn write_statistics(
        &mut self,
        zxid: Zxid,
        path: Cow<'decided, str>,
        text: Bytes,
    ) -> Result<()> {
        let Some(before) = self.node(&path).await? else {
            return Ok(());
        };
        let mut after = before.clone();
        after.stat.data_length = text.len() as i32;
        after.data = Payload::Inline(text.clone());
        after.acl_zxid = zxid;
        self.statistics.insert(path.clone().into_owned(), text);
        self.replace(path, Some(&before), Some(after));
        Ok(())
    }

    /// The number of znodes from `top` downwards, and the length of their data in bytes.
    async fn count(&self, top: &str) -> Result<(i64, i64)> {
        // What the slot has changed so far, then the rest.
        let changed = self
            .nodes
            .iter()
            .filter(|(path, _)| **path == top || path::is_below(path, top));
        let (mut count, mut bytes) = (0, 0);
        for node in changed.filter_map(|(_, node)| node.as_ref()) {
            count += 1;
            bytes += i64::from(node.stat.data_length);
        }
        let mut waiting = Vec::new();
        if let Some(node) = self.region.get(top).await? {
            waiting.push((top.to_owned(), node.stat));
        }
        while !waiting.is_empty() {
            let (mut parents, mut children) = (Vec::new(), 0);
            while children < LISTED_TOGETHER_MAX
                && let Some((path, stat)) = waiting.pop()
            {
                if !self.nodes.contains_key(path.as_str()) {
                    count += 1;
                    bytes += i64::from(stat.data_length);
                }
                if stat.num_children > 0 {
                    children += stat.num_children;
                    parents.push(path);
                }
            }
            if count > COUNTED_MAX {
                tracing::warn!(
                    top,
                    count,
                    "counted only a part of the subtree for its quota"
                );
                break;
            }
            tokio::task::yield_now().await;
            let listings = parents
                .iter()
                .map(|path| self.region.children_with_stats(path));
            for (path, children) in parents.iter().zip(try_join_all(listings).await?) {
                let below = children.into_iter();
                waiting.extend(below.map(|(name, stat)| (path::join(path, &name), stat)));
            }
        }
        Ok((count, bytes))
    }
}

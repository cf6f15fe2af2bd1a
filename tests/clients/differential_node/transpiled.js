exports.default = { handler: async () => "of a transpiled default export" };

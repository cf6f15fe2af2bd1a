exports.handler = async () => "of a folder";
exports.api = { handler: async () => 1, v1: { get: async () => "deep" } };

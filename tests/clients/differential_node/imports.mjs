import "no-such-package"; export const handler = async () => 1;

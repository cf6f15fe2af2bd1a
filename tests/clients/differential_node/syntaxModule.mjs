export const handler = async () => {;

"""What ``import userdp`` offers, one function a file; the package imports each when it is used."""
